"""Parts of models in plain torch: talkers and vocoders, exact and streaming.

engine       the Engine: finds the model family in the checkpoint and hands over to its component
arguments    engineArgs, one struct per component
components   the Component protocol, and the table (model_type, component) -> class
checkpoints  a checkpoint folder, looked at before anything heavy is imported; partial loading
placement    device, element type and threads of a stage
stepping     the one thread that steps all running requests
slots        one padded cache in which many requests have places
sampling     how the next code is chosen, in the order of Hugging Face's generate
conversion   tensors on the wire <-> torch
device_memory
             memory of the device for tensors, and page locks for copies to the host
talker       the component `talker`, as far as it is the same in every family
speech       one request of a talker: how it wants to be spoken, what has come of it
speaking     how a talker steps many requests: one by one, or together
qwen3_omni   Qwen3-Omni's talker and code2wav
qwen2_5_omni Qwen2.5-Omni's talker and token2wav

Importing this package is light: torch and transformers come with `TorchEngine.load`.
"""

from omnistage_stage.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
