"""`omnistage doctor` as a user runs it, for tests of what it says about a cluster."""

import subprocess
import sys

from msgspec import Struct

from cluster.release import Product

__all__ = ["Diagnosis", "diagnosed"]


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What the command said."""

    code: int
    text: str

    def says(self, sentence: str) -> bool:
        """Whether a sentence is in it, however its lines were broken."""
        return "".join(sentence.split()) in "".join(self.text.split())


def diagnosed(product: Product, pipeline: str) -> Diagnosis:
    """Runs `omnistage doctor` on a pipeline of a product."""
    done = subprocess.run(
        [sys.executable, "-m", "omnistage_cli", "doctor", pipeline, "--namespace", product.models],
        env=product.cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return Diagnosis(code=done.returncode, text=done.stdout)
