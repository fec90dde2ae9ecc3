"""What a process of ours must know about itself and its parent, asked of the Linux kernel.

The local runtime promises that nothing outlives it, even when it is killed with SIGKILL and can do
nothing about it. Only the kernel can keep that promise: every child asks it, at its very start, for
a SIGTERM when its parent ends. Nothing here knows what the processes do.
"""

import ctypes
import gc
import os
import signal
from pathlib import Path
from typing import Final

__all__ = ["PARENT_VARIABLE", "exit_with_parent", "resident_bytes", "settle_heap"]

PARENT_VARIABLE: Final = "OMNISTAGE_PARENT_PID"
"""Environment variable in which a parent tells a child its process id, in decimal."""

_PR_SET_PDEATHSIG: Final = 1
_STATM_RESIDENT: Final = 1
_YOUNG_OBJECTS: Final = 20_000


def exit_with_parent() -> None:
    """Has the kernel send this process SIGTERM when its parent ends.

    A child that hears SIGTERM drains and takes its shared memory with it, which SIGKILL would
    leave behind. To be called from the main thread, before anything slow is imported. The kernel
    forgets the wish when the process executes another program.

    Raises:
        SystemExit: The parent had ended already. That is noticed for certain when it set
            `PARENT_VARIABLE`, and otherwise when it ended during this call.
        OSError: The kernel refused.
    """
    stated = os.environ.get(PARENT_VARIABLE, "")
    parent = int(stated) if stated.isdecimal() else os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit(0)


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process in bytes; of this one when none is named.

    Raises:
        ProcessLookupError: There is no such process.
    """
    path = Path("/proc") / ("self" if pid is None else str(pid)) / "statm"
    try:
        fields = path.read_text(encoding="ascii").split()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"no process {pid}") from error
    return int(fields[_STATM_RESIDENT]) * os.sysconf("SC_PAGE_SIZE")


def settle_heap() -> None:
    """Tells the garbage collector that what exists now is here to stay.

    To be called once a server has started. Modules, plans and metrics are a hundred thousand
    objects that each full collection would look at again; what requests leave behind is a few
    hundred a piece, mostly without cycles, so collections can be rarer too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
