"""The reproductions by name, with how long each takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fl.reproduce import compression, dropouts, flamby, flamby_dp, mcmahan, qffl, scaffold, toy
from fl.reproduce.report import Report
from fl.reproduce.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """One of them.

    Attributes:
        about: in a few words.
        run: works out what is not there yet, and reports.
        seconds: by whether the short form is asked for; on one free core of 2020 or later.
    """

    about: str
    run: Callable[[Session], Report]
    seconds: Mapping[bool, float]


CATALOG: Final[Mapping[str, Reproduction]] = {
    "toy": Reproduction(
        about="FedAvg's bias and SCAFFOLD's lack of it, least squares",
        run=toy.reproduce,
        seconds=toy.SECONDS,
    ),
    "flamby-heart": Reproduction(
        about="FLamby's table of Fed-Heart-Disease",
        run=flamby.reproduce_heart,
        seconds=flamby.SECONDS_HEART,
    ),
    "flamby-heart-dp": Reproduction(
        about="FLamby's DP-SGD curve of Fed-Heart-Disease, accounting corrected",
        run=flamby_dp.reproduce,
        seconds=flamby_dp.SECONDS,
    ),
    "flamby-tcga": Reproduction(
        about="FLamby's table of Fed-TCGA-BRCA",
        run=flamby.reproduce_tcga,
        seconds=flamby.SECONDS_TCGA,
    ),
    "scaffold-fashion": Reproduction(
        about="SCAFFOLD against FedAvg by similarity, Fashion-MNIST",
        run=scaffold.reproduce,
        seconds=scaffold.SECONDS,
    ),
    "compression": Reproduction(
        about="a ten times smaller uplink, Fashion-MNIST",
        run=compression.reproduce,
        seconds=compression.SECONDS,
    ),
    "dropouts": Reproduction(
        about="a third of the silos missing in every round",
        run=dropouts.reproduce,
        seconds=dropouts.SECONDS,
    ),
    "mcmahan-mnist": Reproduction(
        about="FedAvg against FedSGD, MNIST",
        run=mcmahan.reproduce,
        seconds=mcmahan.SECONDS,
    ),
    "qffl-adult": Reproduction(
        about="q-FedAvg and AFL for the worse silo, Adult", run=qffl.reproduce, seconds=qffl.SECONDS
    ),
}
