"""Checks that links, `secagg` commands, their options and `make` targets in the Markdown exist.

Only code is read for commands: inline code and fenced blocks. A command with a bar stands for each
of its alternatives (`secagg run start|watch`).
"""

import re
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperGroup

from services.cli.main import app

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```[^\n]*\n(.*?)^```$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COMMAND = re.compile(r"(?<!from)(?:^|[\s/;(])secagg((?: +[^\s;&#]+)*)", re.MULTILINE)
Command = tuple[str, ...]
Known = dict[Command, set[str] | None]
TARGET = re.compile(r"(?:^|[\s;])make ([a-z]+)\b", re.MULTILINE)


def main() -> None:
    """Print what is wrong and fail, or say how much was read."""
    documents = sorted(
        [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    )
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)  # several commands make a group
    known: Known = {(): None, **dict(commands(root, ()))}
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
                for problem in unknown(known, (), use.split())
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


def commands(group: TyperGroup, path: Command) -> Iterator[tuple[Command, set[str] | None]]:
    """Yield every command under the group with its options; a group has None."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield (*path, name), None
            yield from commands(command, (*path, name))
        else:
            yield (
                (*path, name),
                {"--help", *(opt for param in command.params for opt in param.opts)},
            )


def unknown(known: Known, path: Command, words: list[str]) -> Iterator[str]:
    """Yield commands and options among the words that the command line does not have."""
    options = known[path]
    if options is None:
        if words and re.match(r"[a-z]", words[0]):
            for name in words[0].split("|"):
                if (*path, name) in known:
                    yield from unknown(known, (*path, name), words[1:])
                else:
                    yield f"no command: secagg {' '.join((*path, name))}"
        return
    for word in words:
        option = word.strip("[]").partition("=")[0]
        if option.startswith("--") and option not in options:
            yield f"no option: secagg {' '.join(path)} {option}"


if __name__ == "__main__":
    main()
