import re

import pytest

from flashreinforce_molt.sandbox import Isolation, Limits, PythonSandbox, SandboxUnavailable
from flashreinforce_molt.sandbox.config import BACKENDS, LAYERS


def test_every_backend_requires_its_own_wall_seccomp_and_limits():
    for backend, layers in BACKENDS.items():
        assert {backend, "seccomp", "limits"} <= set(layers) <= set(LAYERS)
        assert Isolation(backend).layers == layers


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "docker"}, "Isolation.backend='docker' is not one of namespaces, landlock, bubblewrap"),
        ({"required": ("namespaces", "seccmop")}, "Isolation.required names 'seccmop'"),
        ({"required": ("seccomp", "limits")}, "leaves out 'namespaces', the wall"),
        ({"required": ("namespaces", "bubblewrap")}, "does not offer the layer 'bubblewrap'"),
        (
            {"backend": "landlock", "required": ("landlock", "namespaces")},
            "does not offer the layer 'namespaces'",
        ),
        ({"readable": ("data",)}, "it takes absolute paths"),
        ({"readable": ("/",)}, "never the whole root"),
        ({"readable": ("/proc/1",)}, "never the whole root, /proc"),
    ],
)
def test_an_isolation_that_makes_no_sense_is_refused_by_name(options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Isolation(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 0}, "Limits.timeout=0 must be finite and at least 0.01"),
        ({"timeout": float("nan")}, "Limits.timeout=nan must be finite"),
        ({"memory_bytes": 1e9}, "Limits.memory_bytes=1000000000.0 is not a whole number"),
        ({"processes": True}, "Limits.processes=True is not a whole number"),
        ({"cpu_seconds": -1}, "Limits.cpu_seconds=-1 must be finite"),
        ({"output_bytes": 10}, "Limits.output_bytes=10 must be finite and at least 256"),
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Limits(**options)


def test_counts_of_the_sandbox_must_be_positive():
    with pytest.raises(ValueError, match="concurrency=0"):
        PythonSandbox(concurrency=0)
    with pytest.raises(ValueError, match="spares=-1"):
        PythonSandbox(spares=-1)
    with pytest.raises(ValueError, match="sessions=-1"):
        PythonSandbox(sessions=-1)


def test_a_missing_layer_is_named_with_its_reason_and_its_fix():
    error = SandboxUnavailable("namespaces", "unshare: Operation not permitted")
    assert error.layer == "namespaces"
    assert (
        "sandbox layer 'namespaces' is missing on this host: unshare: Operation not permitted. Fix: "
        in str(error)
    )
    assert 'Isolation(backend="landlock")' in str(error)
