"""Packages: what they are made of, how they are fetched, made, and read back.

Owns the manifest schema, the reader with its checks, the download of known models, and (in `pack/`) making a
package from a model file. Knows `core` and `runtime.contract`; must not know the executor, HTTP, or any session.
Heavy libraries are imported only inside `pack/`. A package is data: nothing in it is ever executed.
"""

from calserve.package.fault import PackageError, PackageFault
from calserve.package.pull import known_models, pull
from calserve.package.reader import open_package

__all__ = ["PackageError", "PackageFault", "known_models", "open_package", "pull"]
