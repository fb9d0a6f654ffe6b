#!/usr/bin/env python3
"""Which adapter_config.json keys each PEFT knows: the dataclass fields of LoraConfig and its bases, read by ast.

    python lora_config_fields.py [OUT.json]

Downloads the wheels with `pip download --no-deps`; imports none of them.
"""
import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSIONS = ["0.6.0", "0.11.1", "0.21.2"]
SOURCES = ["peft/tuners/lora/config.py", "peft/config.py"]


def fields(tree, name):
    """Annotated names of class `name` and of those bases that these files define."""
    cls = next((n for n in tree if n.name == name), None)
    if cls is None:
        return set()
    out = {s.target.id for s in cls.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and "ClassVar" not in ast.unparse(s.annotation)}
    for base in cls.bases:
        out |= fields(tree, ast.unparse(base))
    return out


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".json")
    table = {}
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as d:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", d, f"peft=={version}"], check=True)
            with zipfile.ZipFile(next(Path(d).glob("*.whl"))) as z:
                tree = [n for s in SOURCES for n in ast.parse(z.read(s)).body if isinstance(n, ast.ClassDef)]
        table[version] = sorted(fields(tree, "LoraConfig"))
        assert {"r", "lora_alpha", "peft_type", "base_model_name_or_path"} <= set(table[version])
    out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
