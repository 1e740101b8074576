"""What the module of a peer imports. See docs/adding_a_peer.md."""

from scaling.peers.interface import Prepared

__all__ = ["Prepared"]
