// SPDX-License-Identifier: Apache-2.0
#include "backends/vendor/api_table.h"

#include <dlfcn.h>

namespace ronde::vendor {

SymbolLookup dynamic_symbols() {
  return [](const char* library, const char* symbol, std::string& error) -> void* {
    // dlsym finds a library that the process has loaded, wherever it came from.
    const bool is_loaded = library == kThisProcess;
    void* const handle = is_loaded ? RTLD_DEFAULT : dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void* const address = is_loaded || handle != nullptr ? dlsym(handle, symbol) : nullptr;
    if (address == nullptr) {
      const char* const text = dlerror();
      error = text != nullptr ? text : std::string(symbol) + " is null";
    }
    return address;
  };
}

std::string ApiTable::load(const SymbolLookup& lookup, const char* library) {
  std::string missing;
  std::string first_error;
  std::size_t found = 0;
  for (const Slot& slot : slots_) {
    std::string error;
    *slot.function = lookup(library, slot.symbol, error);
    if (*slot.function != nullptr) {
      ++found;
      continue;
    }
    if (slot.need == Need::Optional) continue;
    if (first_error.empty()) first_error = error;
    missing += (missing.empty() ? "" : ", ") + std::string(slot.symbol);
  }
  if (missing.empty()) return {};
  const std::string name = library == kThisProcess ? "this process" : library;
  return found == 0 ? first_error : name + " lacks " + missing;
}

}  // namespace ronde::vendor
