"""An agent on the standard streams: version 1 of the Agent Client Protocol, for editors.

`serve` speaks the protocol on top of either dispatcher; `peer` gives a runner its client. Neither
needs more than the standard library.
"""

from turngate.acp._peer import Peer, PeerError, peer
from turngate.acp._server import serve

__all__ = ["Peer", "PeerError", "peer", "serve"]
