"""Any agent that speaks version 1 of the Agent Client Protocol (ACP), checked without an adapter.

Two drivers judge one process. The *wire driver* (``wire.py``) is a client that
keeps to the letter and sweeps the moment of each cancel. The *program driver*
(``subject.py``) is a real-time subject of the conformance kit. The kit is also
the model: every provider that the agent may know is a stub on loopback
(``stub.py``), and every call waits there until the kit lets it go.
"""

from turngate_verify.acp.checking import BadAgent, check_agent
from turngate_verify.acp.rig import Setting

__all__ = ["BadAgent", "Setting", "check_agent"]
