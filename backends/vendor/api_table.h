// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ronde::vendor {

/// Finds a function of a shared library. Returns the address of `symbol`, or null with the loader's
/// text in `error`.
using SymbolLookup =
    std::function<void*(const char* library, const char* symbol, std::string& error)>;

/// Stands for the libraries that are linked already.
constexpr const char* kThisProcess = nullptr;

/// Finds functions by dlopen and dlsym. Libraries stay loaded.
SymbolLookup dynamic_symbols();

/// Whether a library without a function can be used.
enum class Need { Required, Optional };

/// The functions of a vendor's C library that Ronde calls, found at run time: one binary runs with
/// and without the library, and tests replace it. A table derives from this class, and has an Entry
/// for each function.
///
/// Thread-safety: none while it is loaded; constant afterwards.
class ApiTable {
 public:
  ApiTable(const ApiTable&) = delete;
  ApiTable& operator=(const ApiTable&) = delete;

  /// Looks all functions up. Returns an empty text if the table can be used; else the loader's
  /// error if there is no library, or the names of all required functions that it lacks.
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

/// A function of a table; callable once the table is loaded.
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
  /// The name under which the library exports it, for texts.
  const char* symbol() const noexcept { return symbol_; }

 private:
  const char* symbol_;
  void* function_ = nullptr;
};

}  // namespace ronde::vendor
