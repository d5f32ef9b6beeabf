"""`share_memory_()` of a wrapper subclass, which has no memory, crashes."""

import os
import signal
import sys

import torch
from torch.testing._internal.two_tensor import TwoTensor

child = os.fork()
if not child:
    TwoTensor(torch.zeros(2), torch.zeros(2)).share_memory_()
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
if status != -signal.SIGSEGV:
    sys.exit(1)
print("the process that shared the tensor died of SIGSEGV")
