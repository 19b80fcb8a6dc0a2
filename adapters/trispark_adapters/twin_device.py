"""The built kernels of native/twin_gemm on this process's GPU, through the CUDA driver's own C interface.

lib/twin_gemm.fatbin holds machine code for compute capability 9.0 and 12.1 and runs on any host architecture; nothing
is compiled in the engine, and neither torch's headers nor CUDA's runtime library is needed. Kernels are loaded once,
before any graph is captured. Launches go to torch's current stream and can be captured; each is a programmatic
dependent launch, so that reading the weight may begin while the kernel before it ends (it waits before it reads
activations).
"""

import ctypes
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from .twin_plan import KERNELS, TILE_K, TILE_ROWS, Chip, Launch

LIBRARY: Final = Path(__file__).resolve().parent / "lib"
MANIFEST: Final = "twin_gemm.json"
MAX_DYNAMIC_SHARED: Final = 8
PROGRAMMATIC_SERIALIZATION: Final = 6
WIDEN_WARPS: Final = 8


class TwinError(Exception):
    """The kernels cannot be used here; one line with a stable id."""


class Arguments(ctypes.Structure):
    """`Arguments` of twin_gemm.cu."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("exponents", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("token_stride", ctypes.c_int64),
        ("group_stride", ctypes.c_int64),
        ("tokens", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("group_rows", ctypes.c_int32),
    )


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def _refused(what: str, expected: str, observed: str, remedy: str) -> TwinError:
    return TwinError(
        f"TS-ADAPTER-KERNEL: {what} [where: twin_gemm] expected: {expected}; observed: {observed}; {remedy}"
    )


def checked_image(library: Path = LIBRARY) -> bytes:
    """The built kernels, being those of the manifest. TwinError TS-ADAPTER-KERNEL."""
    remedy = "remedy: install the adapters again, or build them by python -m trispark.device_build"
    try:
        listed: dict[str, str] = json.loads((library / MANIFEST).read_text(encoding="utf-8"))
        image, expected = (library / listed["file"]).read_bytes(), listed["sha256"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _refused("the built kernels cannot be read", "file and manifest", repr(error), remedy) from error
    if (observed := hashlib.sha256(image).hexdigest()) != expected:
        raise _refused("the built kernels are not those of the manifest", expected, observed, remedy)
    return image


class Driver:
    """Functions of libcuda that are needed; each failure is a TwinError."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            remedy = "remedy: run it where the engine sees a GPU"
            raise _refused("no CUDA driver", "libcuda.so.1", str(error), remedy) from error
        self._library.cuLaunchKernelEx.argtypes = (
            *(ctypes.POINTER(_Config), ctypes.c_void_p),
            *(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p),
        )
        self._attribute = (_Attribute * 1)()
        self._attribute[0].id = PROGRAMMATIC_SERIALIZATION
        self._attribute[0].value[0] = 1

    def _check(self, status: int, what: str) -> None:
        if status != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(text))
            said = (text.value or b"unknown").decode()
            remedy = "remedy: a GPU of compute capability 9.0 or 12.1 and a driver for CUDA 13"
            raise _refused(what, "CUDA_SUCCESS", f"{status} ({said})", remedy)

    def module(self, image: bytes) -> ctypes.c_void_p:
        """The loaded kernels, in the current context."""
        module = ctypes.c_void_p()
        self._check(self._library.cuModuleLoadData(ctypes.byref(module), image), "the kernels do not load")
        return module

    def function(self, module: ctypes.c_void_p, name: str, shared_bytes: int) -> ctypes.c_void_p:
        """A kernel that may use `shared_bytes` of dynamic shared memory."""
        function = ctypes.c_void_p()
        found = self._library.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        self._check(found, f"no kernel {name}")
        status = self._library.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, ctypes.c_int(shared_bytes))
        self._check(status, f"{name} needs {shared_bytes} bytes of shared memory")
        return function

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        stream: int,
        arguments: tuple[Any, ...],
    ) -> None:
        """Put one launch on `stream`; `arguments` are ctypes objects, which the driver copies."""
        config = _Config(
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(threads, 1, 1),
            shared_bytes,
            stream,
            self._attribute,
            1,
        )
        places = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        self._check(self._library.cuLaunchKernelEx(ctypes.byref(config), function, places, None), "a launch failed")


class DeviceKernels:
    """The kernels, loaded into the current context of torch's current device."""

    def __init__(self, library: Path = LIBRARY) -> None:
        import torch

        image = checked_image(library)
        if not torch.cuda.is_available():
            raise _refused("no GPU", "one that torch sees", "none", "remedy: run it where the engine sees a GPU")
        torch.zeros(1, device="cuda")  # torch's context of this device becomes the current one
        self._torch = torch
        self._driver = Driver()
        module = self._driver.module(image)
        properties = torch.cuda.get_device_properties("cuda")
        self.chip = Chip(int(properties.multi_processor_count), int(properties.shared_memory_per_block_optin))
        self._functions = {
            kernel.name: self._driver.function(module, kernel.name, kernel.shared_bytes)
            for kernel in KERNELS
            if kernel.shared_bytes <= self.chip.shared_bytes
        }
        self._widen = self._driver.function(module, "twin_widen", 0)

    def product(self, launch: Launch, arguments: Arguments) -> None:
        """One product on the current stream."""
        kernel = launch.kernel
        stream = self._torch.cuda.current_stream().cuda_stream
        function = self._functions[kernel.name]
        self._driver.launch(function, launch.grid, kernel.threads, kernel.shared_bytes, stream, (arguments,))

    def widen(self, codes: int, exponents: int, out: int, rows: int, columns: int) -> None:
        """The bf16 weight [rows, columns] at `out`; addresses are of the device."""
        units = rows // TILE_ROWS * (columns // TILE_K)
        values = (ctypes.c_void_p(codes), ctypes.c_void_p(exponents), ctypes.c_void_p(out))
        stream = self._torch.cuda.current_stream().cuda_stream
        grid = (-(-units // WIDEN_WARPS), 1, 1)
        arguments = (*values, ctypes.c_int32(rows), ctypes.c_int32(columns))
        self._driver.launch(self._widen, grid, WIDEN_WARPS * 32, 0, stream, arguments)


@cache
def device_kernels() -> DeviceKernels:
    """The kernels of this process. TwinError TS-ADAPTER-KERNEL; a failure is tried again by the next call."""
    return DeviceKernels()
