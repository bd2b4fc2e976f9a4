// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ronde::vendor {

/// Finds a function of a shared library: the address of `symbol`, or null with the loader's words
/// in `error`.
using SymbolLookup =
    std::function<void*(const char* library, const char* symbol, std::string& error)>;

/// The name of the library for functions that are linked already.
constexpr const char* kThisProcess = nullptr;

/// dlopen and dlsym. Libraries stay loaded.
SymbolLookup dynamic_symbols();

/// Whether a library without a function can be used.
enum class Need { Required, Optional };

/// The functions of a vendor's C library that Ronde calls, found at run time: one binary runs with
/// and without the library, and tests bring their own. Tables derive from this class, and have an
/// Entry for each function.
///
/// Thread-safety: none while it is loaded; constant afterwards.
class ApiTable {
 public:
  ApiTable(const ApiTable&) = delete;
  ApiTable& operator=(const ApiTable&) = delete;

  /// Looks all functions up. Returns the loader's error if there is no library, or the names of all
  /// required functions that it lacks; empty: the table can be used.
  [[nodiscard]] std::string load(const SymbolLookup& lookup, const char* library);

 protected:
  ApiTable() = default;
  ~ApiTable() = default;

 private:
  template <typename Result, typename... Arguments>
  friend class Entry;

  struct Slot {
    const char* symbol;
    Need need;
    void** function;
  };
  std::vector<Slot> slots_;
};

/// One function of a table, which is called like a function once the table is loaded.
template <typename Result, typename... Arguments>
class Entry {
 public:
  using Function = Result(Arguments...);

  Entry(ApiTable& table, const char* symbol, Need need = Need::Required) : symbol_(symbol) {
    table.slots_.push_back({symbol, need, &function_});
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  /// Whether the library has it.
  explicit operator bool() const noexcept { return function_ != nullptr; }
  [[nodiscard]] Result operator()(Arguments... arguments) const {
    return reinterpret_cast<Function*>(function_)(arguments...);
  }
  /// As the library exports it, for texts.
  const char* symbol() const noexcept { return symbol_; }

 private:
  const char* symbol_;
  void* function_ = nullptr;
};

}  // namespace ronde::vendor
