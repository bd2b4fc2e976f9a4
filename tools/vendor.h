// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ronde::tool {

/// One GPU as the driver describes it.
struct Gpu {
  int index = 0;
  std::string name;
  std::uint64_t memory_bytes = 0;
  std::string uuid;    ///< "GPU-xxxxxxxx-...", as nvidia-smi writes it
  std::string pci_id;  ///< "0000:1b:00.0"
};

/// What a vendor's library says when it is asked at run time.
struct VendorLibrary {
  bool found = false;
  std::string version;  ///< empty unless found
  std::string remark;   ///< why it was not found, or what it complained about
};

struct CudaReport {
  VendorLibrary driver;
  std::vector<Gpu> gpus;
};

/// Finds a function of a shared library: the address of `symbol`, or null with the loader's words
/// in `error`.
using SymbolLookup =
    std::function<void*(const char* library, const char* symbol, std::string& error)>;

/// dlopen and dlsym. Libraries stay loaded.
SymbolLookup dynamic_symbols();

/// Asks libcuda.so.1. Initialises the driver, but makes no context and holds no memory of a GPU.
CudaReport ask_cuda(const SymbolLookup& lookup);

/// Asks libnccl.so.2.
VendorLibrary ask_nccl(const SymbolLookup& lookup);

}  // namespace ronde::tool
