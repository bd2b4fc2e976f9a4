// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backends/vendor/api_table.h"

namespace ronde::test {

/// A vendor's functions, by their names, that a test stands in for.
using Functions = std::map<std::string, void*>;

template <typename Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

/// No library is installed.
inline const vendor::SymbolLookup kNoLibrary = [](const char* library, const char*,
                                                  std::string& error) -> void* {
  error = std::string(library) + ": cannot open shared object file";
  return nullptr;
};

/// A library that has these and no others.
inline vendor::SymbolLookup library_of(Functions functions) {
  return [functions = std::move(functions)](const char*, const char* symbol,
                                            std::string& error) -> void* {
    const auto found = functions.find(symbol);
    if (found != functions.end()) return found->second;
    error = std::string("no ") + symbol;
    return nullptr;
  };
}

/// A library that has these, and every other one but those of `lacks`, which must not be called.
inline vendor::SymbolLookup library_with(Functions functions, std::vector<std::string> lacks = {}) {
  return [known = library_of(std::move(functions)), lacks = std::move(lacks)](
             const char* library, const char* symbol, std::string& error) -> void* {
    void* const found = known(library, symbol, error);
    const bool lacking = std::find(lacks.begin(), lacks.end(), symbol) != lacks.end();
    return found != nullptr || lacking ? found : address(+[] { std::abort(); });
  };
}

}  // namespace ronde::test
