"""Public API for user-defined peers (AD libraries other than JAX): export `Prepared`, a derivative to call.

See docs/adding_a_peer.md.
"""

from scaling.peers.interface import Prepared

__all__ = ["Prepared"]
