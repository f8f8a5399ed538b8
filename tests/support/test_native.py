from ingot.support.native import Features, capabilities, host, parse_cpuinfo, with_vector_length


def test_cpuinfo_counts_only_what_every_core_has():
    text = "processor: 0\nflags\t\t: fpu avx2 fma avx512f\n\nprocessor: 1\nflags\t\t: fpu avx2 fma\n"
    assert parse_cpuinfo(text, "x86_64") == ("avx2", "fma")
    assert parse_cpuinfo("Features\t: fp asimd asimddp\n", "aarch64") == ("dotprod", "fp-armv8", "neon")
    assert parse_cpuinfo("", "x86_64") == ()
    assert parse_cpuinfo("flags: avx", "riscv64") == ()


def test_capabilities_of_the_kernel():
    assert capabilities("aarch64", 1 << 0 | 1 << 1 | 1 << 20 | 1 << (64 + 14)) == (
        "bf16",
        "dotprod",
        "fp-armv8",
        "neon",
    )
    assert capabilities("riscv64", 0x20112D) == ("a", "c", "d", "f", "m", "v")
    assert capabilities("riscv64", 0x112D) == ("a", "c", "d", "f", "m")
    assert with_vector_length(("m", "v"), 128) == ("m", "v")
    assert with_vector_length(("m", "v"), 512) == ("m", "v", "zvl256b", "zvl512b")
    assert with_vector_length(("m",), 512) == ("m",)


def test_missing_features():
    machine = Features("x86_64", ("avx", "fma"))
    assert machine.missing(("avx", "avx2")) == ("avx2",)
    assert "fma" in machine
    assert host().features == tuple(sorted(host().features))
