"""Checks that links, `secagg` commands, their options and `make` targets in the Markdown exist.

Only code is read for commands: inline code and fenced blocks. A command with a bar stands for each of
its alternatives (`secagg run start|watch`).
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import typer

from services.cli.main import app

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```[^\n]*\n(.*?)^```$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COMMAND = re.compile(r"(?:^|[\s/;(])secagg((?: +[^\s;&#]+)*)", re.MULTILINE)
TARGET = re.compile(r"(?:^|[\s;])make ([a-z]+)\b", re.MULTILINE)


def main() -> None:
    """Print what is wrong and fail, or say how much was read."""
    documents = sorted(
        [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    )
    command = typer.main.get_command(app)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    wrong = []
    for document in documents:
        text = document.read_text("utf-8")
        code = "\n".join(a or b for a, b in CODE.findall(text)).replace("\\\n", " ")
        problems = [
            *broken_links(document, text),
            *(
                problem
                for use in COMMAND.findall(code)
                for problem in unknown(command, use.split())
            ),
            *(f"no target: make {name}" for name in TARGET.findall(code) if name not in targets),
        ]
        wrong += [f"{document.relative_to(ROOT)}: {problem}" for problem in problems]
    if wrong:
        raise SystemExit("\n".join(wrong))
    print(f"{len(documents)} documents: links, commands and targets exist")


def anchors(text: str) -> set[str]:
    """Anchors of the headings, as forges derive them."""
    titles = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(document: Path, text: str) -> Iterator[str]:
    """Yield links inside the repository that lead nowhere."""
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists():
            yield f"no such file: {link}"
        elif anchor and anchor not in anchors(target.read_text("utf-8")):
            yield f"no such heading: {link}"


def unknown(command: click.Command, words: list[str]) -> Iterator[str]:
    """Yield commands and options among the words that the command line does not have."""
    if isinstance(command, click.Group) and words and re.match(r"[a-z]", words[0]):
        for name in words[0].split("|"):
            if name in command.commands:
                yield from unknown(command.commands[name], words[1:])
            else:
                yield f"no command: {command.name} {name}"
        return
    options = {"--help", *(name for param in command.params for name in param.opts)}
    for word in words:
        option = word.strip("[]").partition("=")[0]
        if option.startswith("--") and option not in options:
            yield f"no option: {command.name} {option}"


if __name__ == "__main__":
    main()
