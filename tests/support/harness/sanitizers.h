// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ronde::test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

/// Full sweeps run without a sanitizer; sanitized programs, which are slow, run a few rows of them.
template <typename T>
constexpr T plain_or_sanitized(T plain, T sanitized) {
  return kIsSanitized ? sanitized : plain;
}

}  // namespace ronde::test
