"""A CUDA driver as a library, which asks the system for what NVIDIA's asks for.

Its device is a file, without which `cuInit` fails with the code 304, as NVIDIA's does where a
right is missing. Memory is the host's, and of all kernels only `felix_compare` does something: it
counts bytes and floats that are not equal.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from felix.measure import local, locks, rights, work

_SOURCE = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { OK = 0, OPERATING_SYSTEM = 304, NOT_FOUND = 500 };

static int may_name_threads(void) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%d/comm", gettid());
  FILE *file = fopen(path, "w");
  if (file == NULL) return 0;
  int named = fputs("cuda", file) >= 0;
  return fclose(file) == 0 && named;
}

static int no_server_is_there(void) {
  struct sockaddr_un server = {AF_UNIX, "/tmp/nvidia-mps-of-nobody/control"};
  int end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (end < 0) return 0;
  int status = connect(end, (struct sockaddr *)&server, sizeof server);
  int is_missing = status < 0 && errno == ENOENT;
  close(end);
  return is_missing;
}

int cuInit(unsigned flags) {
  int device = open(DEVICE, O_RDWR), memory = memfd_create("cuda", MFD_CLOEXEC);
  int list = open("/proc/devices", O_RDONLY);
  if (device < 0 || memory < 0 || list < 0) return OPERATING_SYSTEM;
  return may_name_threads() && no_server_is_there() ? OK : OPERATING_SYSTEM;
}
int cuGetExportTable(void **table, void *id) { return NOT_FOUND; }  /* NVRTC asks for one */
int cuDeviceGet(int *device, int index) { *device = index; return OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &cuInit; return OK; }
int cuCtxSetCurrent(void *context) { return OK; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = &cuInit; return OK; }
int cuStreamSynchronize(void *stream) { return OK; }
int cuDeviceGetAttribute(int *value, int number, int device) {
  *value = number == 75 ? 9 : number == 76 ? 0 : number == 38 ? 4096 : 4;
  return OK;
}
int cuMemAlloc_v2(void **pointer, size_t size) { *pointer = malloc(size); return OK; }
int cuMemFree_v2(void *pointer) { free(pointer); return OK; }
int cuMemcpyHtoDAsync_v2(void *to, void *from, size_t size, void *stream) {
  memcpy(to, from, size);
  return OK;
}
int cuMemcpyDtoH_v2(void *to, void *from, size_t size) { memcpy(to, from, size); return OK; }
int cuMemcpyDtoDAsync_v2(void *to, void *from, size_t size, void *stream) {
  memcpy(to, from, size);
  return OK;
}
int cuMemsetD8Async(void *pointer, unsigned char byte, size_t size, void *stream) {
  memset(pointer, byte, size);
  return OK;
}
int cuModuleLoadData(void **module, void *image) { *module = image; return OK; }
int cuModuleUnload(void *module) { return OK; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = strdup(name);
  return OK;
}
int cuLaunchKernel(char *name, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **args, void **extra) {
  if (strcmp(name, "felix_compare") == 0) {
    char *got = *(char **)args[0], *want = *(char **)args[1];
    unsigned long count = *(unsigned long *)args[2], *result = *(unsigned long **)args[6];
    int of_floats = *(int *)args[5] == 1;
    for (unsigned long i = count; i-- > 0;) {
      float g = ((float *)got)[of_floats ? i : 0], w = ((float *)want)[of_floats ? i : 0];
      if (of_floats ? g == w || (g != g && w != w) : got[i] == want[i]) continue;
      result[0] += 1;
      result[1] = i;
    }
  }
  return OK;
}
int cuEventCreate(void **event, unsigned flags) { *event = &cuInit; return OK; }
int cuEventRecord(void *event, void *stream) { return OK; }
int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
  *milliseconds = 0.04f;
  return OK;
}
int cuGetErrorName(int code, const char **name) {
  *name = code == OPERATING_SYSTEM ? "CUDA_ERROR_OPERATING_SYSTEM" : "CUDA_ERROR_UNKNOWN";
  return OK;
}
"""


#: What TVM's CUDA runtime links of the driver.
_LINKED = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
    "cuInit",
    "cuDriverGetVersion",
)


def make_stub(folder: pathlib.Path) -> None:
    """Compile a `libcuda.so.1` of which every call fails: TVM's CUDA runtime loads beside it."""
    source = "\n".join(f"int {name}(void) {{ return 999; }}" for name in _LINKED)
    _compile(source, folder)


def make(folder: pathlib.Path, device: pathlib.Path) -> None:
    """Compile `libcuda.so.1` into a folder, for a device that is a file."""
    _compile(_SOURCE, folder, f'-DDEVICE="{device}"')


GPU = work.Device("cuda", "NVIDIA H200", 1 << 20)


def use(
    monkeypatch: pytest.MonkeyPatch,
    folder: pathlib.Path,
    device: pathlib.Path,
    allowed: bool = True,
) -> None:
    """Let pools find the GPU of that driver, which confined processes may use if `allowed`."""
    device.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(local, "of", lambda target: GPU)
    monkeypatch.setattr(locks, "for_gpu", lambda *device: locks.ReadWriteLock())
    if allowed:
        monkeypatch.setattr(rights, "nvidia_devices", lambda: [str(device)])


def _compile(source: str, folder: pathlib.Path, *options: str) -> None:
    command = ["cc", "-w", "-shared", "-fPIC", *options, "-x", "c", "-"]
    command += ["-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, input=source, text=True, check=True)
