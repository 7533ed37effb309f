"""`secagg model`: use a released model on one's own file; needs no torch."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import AsJson, require_apart, show

app = typer.Typer(no_args_is_help=True, help="Use a released model on a CSV file of one's own.")

Model = Annotated[Path, typer.Argument(help="model.safetensors, as a run has released it.")]
Data = Annotated[Path, typer.Option("--data", help="A CSV file in the run's feature schema.")]


@app.command("show", epilog="Example: secagg model show model.safetensors")
def show_model(model: Model, as_json: AsJson = False) -> None:
    """Show what the file holds: task, tensors and the training plan that made it."""
    from fl.modelfile import load_model

    file = load_model(model)
    tensors = {name: list(tensor.shape) for name, tensor in sorted(file.tensors.items())}
    lines = [f"task {file.task}", f"training plan {file.plan_digest.hex()}"]
    lines += [f"{name}: {shape}" for name, shape in tensors.items()]
    show(
        {
            "task": file.task,
            "plan": file.plan_digest.hex(),
            "tensors": tensors,
            "settings": file.settings,
        },
        "\n".join(lines),
        as_json=as_json,
    )


@app.command(epilog="Example: secagg model evaluate model.safetensors --data test.csv")
def evaluate(model: Model, data: Data, as_json: AsJson = False) -> None:
    """Evaluate on labelled rows: loss, accuracy, and the AUC of two classes."""
    from services.scoring import evaluate_file

    figures = evaluate_file(model, data)
    text = "\n".join(
        f"{name}: {value:.{0 if name == 'rows' else 4}f}" for name, value in figures.items()
    )
    show(figures, text, as_json=as_json)


@app.command(epilog="Example: secagg model predict model.safetensors --data new.csv -o out.csv")
def predict(
    model: Model,
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The CSV file to write.")],
) -> None:
    """Write each row's probability of each class."""
    from services.scoring import predict_file

    require_apart(output, model, data)
    rows = predict_file(model, data, output)
    typer.echo(f"{output}: {rows} rows")
