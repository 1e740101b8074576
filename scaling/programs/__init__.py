"""Read jaxprs, HLO modules and LLVM IR: count operations and bytes, and evaluate jaxprs in other ways."""
