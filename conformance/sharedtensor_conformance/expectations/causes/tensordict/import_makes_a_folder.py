"""`import tensordict` leaves a folder, torchinductor_*, in the temporary directory."""

import os
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as folder:
    surroundings = os.environ | {"TMPDIR": folder}
    command = [sys.executable, "-c", "import tensordict"]
    subprocess.run(command, env=surroundings, check=True)
    left = os.listdir(folder)
if not left:
    sys.exit(1)
print(f"after a process that imported tensordict there is {', '.join(left)}")
