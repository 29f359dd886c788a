import os

# Some virtual machines announce AMX and then do not let programs use it: torch's half-precision matrix products die
# there with an illegal instruction. oneDNN reads this when it first runs, which is after collection.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
