"""Answers that consist of images, at once or at the end of a stream of steps.

An image is encoded when it is there, while the stages may still be making the next one.
"""

import time

from omnistage_common.errors import MissingOutput, OmnistageError
from omnistage_common.ids import StageName
from omnistage_common.payloads import Content, Tensor
from omnistage_common.pipeline.plan import Modality, OutputPlan
from omnistage_gateway.media.formats import ImageFormat
from omnistage_gateway.openai.answers import RequestReport
from omnistage_gateway.openai.events import error_event
from omnistage_gateway.openai.image_events import (
    MadeImage,
    image_progress,
    images_body,
    images_completed,
)
from omnistage_gateway.requests.answering import Send, kept, made_image

__all__ = ["StreamedImages", "WholeImages"]


class _Images:
    """The images of an answer."""

    def __init__(self, count: int, image_format: ImageFormat, quality: int) -> None:
        self._count = count
        self._format = image_format
        self._quality = quality
        self._made: list[tuple[int, MadeImage]] = []
        self._pending: list[tuple[int, Tensor]] = []
        """Those that are not encoded yet."""

    def deliver(self, plan: OutputPlan, content: Content, index: int) -> None:
        """See `AnswerSink`."""
        if plan.modality is Modality.IMAGE:
            self._pending.append((index, kept(content)))

    async def flush(self) -> None:
        """Encodes the images that came in this turn."""
        pending, self._pending = self._pending, []
        for index, image in pending:
            self._made.append((index, await made_image(image, self._format, self._quality)))

    def _all(self) -> list[MadeImage]:
        """The images in order.

        Raises:
            MissingOutput: There are fewer than were asked for.
        """
        if len(self._made) < self._count:
            raise MissingOutput(
                f"the client asked for {self._count} images, the stages made {len(self._made)}"
            )
        return [image for _, image in sorted(self._made, key=lambda item: item[0])]


class WholeImages(_Images):
    """One JSON body."""

    def progress(self, stage: StageName, done: int, total: int) -> None:
        """See `AnswerSink`."""

    def body(self, *, prompt_tokens: int, report: RequestReport) -> bytes:
        """The answer as JSON.

        Args:
            prompt_tokens: Tokens of the prompt, 0 when nothing counts them.
            report: The extension object.

        Raises:
            MissingOutput: There are fewer images than were asked for.
        """
        return images_body(
            self._all(), created=int(time.time()), prompt_tokens=prompt_tokens, report=report
        )


class StreamedImages(_Images):
    """Server-sent events: steps while the images are made, then the images."""

    def __init__(self, send: Send, *, count: int, image_format: ImageFormat, quality: int) -> None:
        super().__init__(count, image_format, quality)
        self.started = False
        """Whether anything was sent."""
        self._send = send
        self._steps: dict[StageName, bytes] = {}
        """The latest step of each stage that was not sent yet."""

    def progress(self, stage: StageName, done: int, total: int) -> None:
        """See `AnswerSink`."""
        self._steps[stage] = image_progress(stage, done, total)

    async def flush(self) -> None:
        """Sends the steps of this turn, and encodes its images."""
        if self._steps:
            self.started = True
            data = b"".join(self._steps.values())
            self._steps.clear()
            await self._send(data, last=False)
        await super().flush()

    async def finish(self, *, prompt_tokens: int, report: RequestReport) -> None:
        """Sends the images; arguments and errors as those of `WholeImages.body`."""
        images = self._all()
        self.started = True
        events = images_completed(
            images, created=int(time.time()), prompt_tokens=prompt_tokens, report=report
        )
        await self._send(events, last=True)

    async def fail(self, error: OmnistageError) -> None:
        """Sends the event that says how a stream that had started failed."""
        await self._send(error_event(error), last=True)
