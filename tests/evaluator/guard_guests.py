"""What the guard's tests run inside sandboxed workers, where torch has been imported. Each takes and returns JSON."""

from __future__ import annotations

import base64
import ctypes
import gc
import os
import threading

from kernelwright.evaluator.worker.guarded_memory import Guard
from kernelwright.sandbox.messages import recv_message, send_message

LARGE_BYTES = 4 << 20


def serve(sock):
    """As a worker of the referee gets it: the library comes as a sealed memory file over the socket."""
    import torch

    _, (library_fd,) = recv_message(sock, timeout_s=60.0)
    guard = Guard(library_fd)
    installed = guard.install()
    guard.on(0xFF)
    block = torch.empty(32, 1024)
    poisoned = bool(block.isnan().all())
    write(block, block.nbytes, 4)
    del block
    send_message(sock, {"installed": installed, "poisoned": poisoned, "violations": guard.violations()})


def installed(payload):
    """A guard that works, of a library that came in the payload."""
    fd = os.memfd_create("guard")
    os.write(fd, base64.b64decode(payload["library"]))
    guard = Guard(fd)
    assert guard.install(), guard.reason
    return guard


def write(block, offset, size):
    """Change ``size`` bytes from ``offset`` on, counted from the start of a tensor's memory."""
    at = (ctypes.c_ubyte * size).from_address(block.data_ptr() + offset)
    for i in range(size):
        at[i] ^= 0xFF


def filled(size, byte):
    """Whether new memory of ``size`` bytes consists of ``byte``. Unguarded, it does not: no test fills that much."""
    import torch

    return bool((torch.empty(size, dtype=torch.uint8) == byte).all())


def poison(payload):
    import torch

    guard = installed(payload)
    guard.on(0xFF)
    seen = {"float32": bool(torch.empty(7, 1001).isnan().all()), "int8": torch.empty(3, dtype=torch.int8).tolist()}
    grown = torch.zeros(4)
    grown.resize_(100_000)
    seen["resized"] = [bool((grown[:4] == 0).all()), bool(grown[4:].isnan().all())]
    guard.on(0x3C)
    seen["another byte"] = bytes(torch.empty(5, dtype=torch.uint8).tolist()).hex()
    guard.on(0xC3, limit_bytes=LARGE_BYTES - 1)
    seen["filled"] = [filled(size, 0xC3) for size in (1, LARGE_BYTES - 1, LARGE_BYTES, 2 * LARGE_BYTES)]
    large = torch.empty(LARGE_BYTES, dtype=torch.uint8)
    write(large, large.nbytes, 1)
    return {**seen, "violations": guard.violations()}


def trespass(payload):
    """Write where told around a block of 131,072 bytes, look while it lives and after it was freed."""
    import torch

    guard = installed(payload)
    guard.on(0xFF)
    block = torch.empty(32, 1024)
    for offset, size in payload["writes"]:
        write(block, offset, size)
    live = guard.violations()
    again = guard.violations()
    if payload["off"]:
        guard.off()
    del block
    return {"live": live, "again": again, "freed": guard.violations()}


def trespass_often(payload):
    import torch

    guard = installed(payload)
    guard.on(0xFF)
    for size in range(1, 21):
        write(torch.empty(size), 4 * size, size)
    return {"violations": guard.violations()}


def carry(payload):
    """Copy too much, so that one block's red zone goes into the place of another's."""
    import torch

    guard = installed(payload)
    guard.on(0xFF)
    source, target = torch.zeros(1000), torch.zeros(1000)
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes + 64)
    return {"violations": guard.violations()}


def operators(torch):
    """Results of honest operators on fixed data, by name."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    a, b, vector, images = draw(130, 257), draw(257, 65), draw(257), draw(2, 3, 17, 19)
    results = {
        "matmul": a @ b,
        "vector": a @ vector,
        "batched": torch.bmm(draw(3, 20, 30), draw(3, 30, 10)),
        "addmm": torch.addmm(draw(65), a, b, beta=0),
        "half": (a.bfloat16() @ b.bfloat16()).float(),
        "softmax": torch.softmax(a, dim=-1),
        "cat": torch.cat([a, a[:3], torch.empty(0, 257)]),
        "convolution": torch.nn.functional.conv2d(images, draw(5, 3, 3, 3), padding=1),
        "pooling": torch.nn.functional.max_pool2d(images, 3),
        "layer norm": torch.nn.functional.layer_norm(a, (257,)),
        "attention": torch.nn.functional.scaled_dot_product_attention(*(draw(1, 2, 33, 16) for _ in range(3))),
        "sort": a.sort(dim=0).values,
        "cumsum": a.cumsum(0),
        "inverse": torch.linalg.inv(a @ a.T + 300 * torch.eye(130)),
        "fft": torch.fft.rfft(a).abs(),
        "index": a[torch.arange(0, 130, 7)],
        "odd size": draw(1_000_003).relu_(),
        "six dimensions": draw(2, 3, 2, 3, 2, 3, 2).permute(6, 0, 5, 1, 4, 2, 3).contiguous(),
        "numpy": torch.from_numpy(a.numpy() * 2),
        "empty": torch.empty(0).sum(),
    }
    grown = draw(10).resize_(5).resize_(2000)
    grown[5:] = 1
    results["resize_"] = grown
    results["set_"] = torch.empty(3).set_(a.storage(), 4, (6, 7))
    weight = torch.nn.Parameter(draw(257, 8))
    torch.nn.functional.gelu(a @ weight).square().sum().backward()
    results["autograd"] = weight.grad
    return results


def honest(payload):
    """Operators give what they give unguarded, and none of them trespasses."""
    import torch

    guard = installed(payload)
    torch.set_num_threads(payload["threads"])
    plain = operators(torch)
    guard.on(0xFF)
    guarded = operators(torch)
    different = [name for name, result in plain.items() if not torch.equal(result, guarded[name])]
    live = guard.violations()
    aligned = [torch.empty(size, dtype=torch.uint8).data_ptr() % 64 for size in range(1, 300)]
    del plain, guarded
    return {"different": different, "live": live, "freed": guard.violations(), "aligned": not any(aligned)}


def threads(payload):
    """Threads that allocate, grow and free at once, each other's blocks included."""
    import torch

    guard = installed(payload)
    guard.on(0xFF)
    shelf = [torch.zeros(1)] * 64
    sums = []

    def work(number):
        for i in range(2000):
            block = torch.empty(1 + 37 * i % 5000)
            block.fill_(number)
            shelf[(number * 31 + i) % len(shelf)] = block
        sums.append(float(block.sum()) == number * block.numel())

    pool = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return {"sums": sums, "violations": guard.violations()}


def switch(payload):
    """Blocks of before the installation, of guarded and of unguarded time are freed in each other's times."""
    import torch

    before = [torch.ones(size) for size in range(1, 2000, 7)]
    guard = installed(payload)
    times = [filled(LARGE_BYTES, 0xC3)]
    guard.on(0xC3)
    del before
    during = [torch.empty(size, dtype=torch.uint8) for size in range(1, 2000, 7)]
    guard.off()
    times.append(filled(LARGE_BYTES, 0xC3))
    unguarded = [torch.ones(size) for size in range(1, 2000, 7)]
    kept = all(bool((block == 0xC3).all()) for block in during)
    del during
    guard.on(0xC3)
    del unguarded
    times.append(filled(LARGE_BYTES, 0xC3))
    return {"before, off, on": times, "kept": kept, "violations": guard.violations()}


def many(payload):
    """More living blocks than the guard's table first holds, freed in no order."""
    import torch

    guard = installed(payload)
    guard.on(0xFF)
    blocks = [torch.empty(size % 100 + 1) for size in range(10_000)]
    write(blocks[5000], blocks[5000].nbytes, 1)
    live = guard.violations()
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(7)).tolist()
    for position in order:
        blocks[position] = None
    return {"live": live, "freed": guard.violations()}


def cycle(payload):
    """Memory of this process after many allocations, in bytes above what it was before them."""
    import torch

    guard = installed(payload)
    guard.on(0xFF)

    def run(count):
        for _ in range(count // 100):
            del [torch.empty(25_000) for _ in range(100)][:]
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    first = run(1000)
    return {"grown_bytes": run(10_000) - first, "violations": guard.violations()}
