// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

// A target is a file that defines LLVMFuzzerTestOneInput and corpus(). driver.cc mutates the corpus
// and gives the results to the target. libFuzzer does the same with more patience: clang++ with
// -fsanitize=fuzzer,address,undefined links it to a target and the libraries' sources unchanged.
//
// A target catches what its decoder is documented to throw. Everything else that goes wrong ends
// the process: a crash, a sanitizer's report, another exception, a call of fail().
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace ronde::fuzz {

struct Corpus {
  /// What Ronde's encoders make. The target must accept each.
  std::vector<std::string> valid;
  /// Inputs that were once mishandled.
  std::vector<std::string> once_failed = {};
  /// How many random mutations to try.
  std::size_t rounds = 20'000;
  /// No input is longer.
  std::size_t longest = std::size_t{32} << 10;
};

Corpus corpus();

/// Inputs that a target's decoder took, which it counts.
inline std::uint64_t accepted = 0;

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace ronde::fuzz
