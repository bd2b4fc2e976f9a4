// SPDX-License-Identifier: Apache-2.0
// Conversions of what a program passes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "c_api/src/errors.h"
#include "ronde/init_options.h"
#include "ronde/process_set.h"
#include "ronde/ronde_c.h"

namespace ronde::c {

/// Returns the set that a program names by `number`: one of ronde_init()'s, or one that number_of()
/// has named. Throws RONDE_E_UNKNOWN_SET for others.
ProcessSet set_of(std::uint32_t number);

/// Returns the number by which a program names a set: its own in the world of ronde_init(), and
/// from 2^31 on for others, where no two sets of this process ever have the same.
std::uint32_t number_of(ProcessSet set);

/// Copies a list of ranks.
std::vector<int> list_of(const int* ranks, int count);

/// Converts the options of a start; NULL: the defaults.
InitOptions options_of(const ronde_init_options* given);

/// Converts a time limit; negative, and what the clock cannot hold: none.
std::optional<std::chrono::steady_clock::time_point> deadline_in(double timeout_s);

/// Converts a time limit to one of the engine; 0, and what is longer than 31 years: zero, for ever.
std::chrono::nanoseconds timeout_of(double seconds, const char* name);

/// Copies a list into memory of the caller, which has room for *count numbers.
template <typename From, typename To>
void give_list(const std::vector<From>& list, To* memory, int* count, To (*convert)(From)) {
  const int room = *count;
  expect(memory == nullptr || room >= 0, "count is negative");
  *count = static_cast<int>(list.size());
  if (memory == nullptr) return;
  if (*count > room) {
    throw Failure(RONDE_E_TOO_SMALL, "there is room for " + std::to_string(room) + " of " +
                                         std::to_string(*count) + " numbers");
  }
  std::transform(list.begin(), list.end(), memory, convert);
}

/// Converts a struct, which begins with its size, to this version's: an older one, which is
/// smaller, gets the fields that it lacks from `defaults`; the fields of a newer one that this
/// version does not know must be zero. `type` is the name of the struct.
template <typename Struct>
Struct known_part(const Struct& given, Struct defaults, const std::string& type) {
  std::size_t size = 0;
  std::memcpy(&size, &given, sizeof(size));
  if (size < sizeof(size)) {
    throw Failure(RONDE_E_INVALID_ARGUMENT,
                  "struct_size of a " + type + " is not set: it is sizeof(" + type + ")");
  }
  std::memcpy(static_cast<void*>(&defaults), &given, std::min(size, sizeof(Struct)));
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&given);
  for (std::size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] == 0) continue;
    throw Failure(RONDE_E_UNSUPPORTED,
                  "a " + type + " has fields that this version (" + ronde_version() +
                      ") does not know: leave them zero, or use a newer libronde_c");
  }
  return defaults;
}

/// Runs `make` in a function that waits for other ranks, and gives the number of the set that it
/// returns.
template <typename Make>
int give_set(const char* function, std::uint32_t* set, const Make& make) noexcept {
  return guarded(function, [&] {
    expect(set != nullptr, "set is NULL");
    expect_no_callback();
    *set = number_of(make());
  });
}

}  // namespace ronde::c
