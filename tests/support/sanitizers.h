// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ronde::test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

/// Sweeps belong to plain programs; a sanitizer, under which everything takes long, sees as much in
/// a few of their rows.
template <typename T>
constexpr T plain_or_sanitized(T plain, T sanitized) {
  return kIsSanitized ? sanitized : plain;
}

}  // namespace ronde::test
