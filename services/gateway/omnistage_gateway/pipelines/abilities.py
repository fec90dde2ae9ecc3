"""What a pipeline can do, in the words of those who ask: what it takes, what it makes, and how.

A pure function of the plan, worked out once. Routing says which stages a request visits; this says
before that what a request means which leaves something to the model, and names what a pipeline cannot
do in the words of the endpoint that was asked.
"""

from msgspec import Struct

from omnistage_common.errors import InvalidRequest, UnsupportedModality
from omnistage_common.ids import OutputName
from omnistage_common.pipeline.plan import Execution, Modality, PipelinePlan

__all__ = ["Abilities"]

_TEXT = frozenset({Modality.TEXT})


class Abilities(Struct, frozen=True, kw_only=True):
    """See the module."""

    takes: frozenset[OutputName]
    """Request inputs that some stage consumes."""
    makes: frozenset[Modality]
    """What answers can consist of."""
    denoises: bool
    """Whether a stage denoises, so that steps, guidance and the like mean something."""

    @classmethod
    def of(cls, plan: PipelinePlan) -> "Abilities":
        """The abilities of a pipeline."""
        return cls(
            takes=frozenset(item.name for stage in plan.stages for item in stage.consumes),
            makes=frozenset(
                output.modality for output in plan.outputs if output.modality is not None
            ),
            denoises=any(stage.execution is Execution.DIFFUSION for stage in plan.stages),
        )

    def wants(self, named: frozenset[Modality] | None) -> frozenset[Modality]:
        """What a client wants that named these modalities.

        One that names none means text, or the only thing that the pipeline makes. Audio comes with
        its text where there is any.

        Raises:
            UnsupportedModality: It names none, and the pipeline makes several things but no text.
        """
        if named is None:
            if Modality.TEXT in self.makes:
                return _TEXT
            if len(self.makes) == 1:
                return self.makes
            raise UnsupportedModality(
                "`modalities` is missing, and this model makes several things: "
                + ", ".join(sorted(modality.value for modality in self.makes)),
                field="modalities",
            )
        if Modality.AUDIO in named and Modality.TEXT in self.makes:
            return named | _TEXT
        return named

    def check_denoises(self, field: str) -> None:
        """Returns when a field that is about denoising means something; also when none was sent.

        Args:
            field: The field that was sent; empty when none was.

        Raises:
            InvalidRequest: The pipeline does not denoise.
        """
        if field and not self.denoises:
            raise InvalidRequest(
                f"`{field}` means nothing to this model, which does not denoise; leave it out",
                field=field,
            )
