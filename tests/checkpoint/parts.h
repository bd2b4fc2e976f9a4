// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "torch_ext/src/store/manifest.h"

namespace ronde::test {

/// A checkpoint of small parts.
struct TestCheckpoint {
  store::Manifest manifest = {};
  std::vector<std::string> indices = {};
  std::vector<std::string> data = {};
};

/// Part p holds the entry "x", whose bytes are those of `data(p)`.
inline TestCheckpoint make_checkpoint(std::int64_t sequence, std::int64_t step, int parts) {
  TestCheckpoint made{.manifest = {.name = {sequence, step, "0123abcd"}, .ranks = parts}};
  for (int part = 0; part < parts; ++part) {
    std::string data = "head of " + std::to_string(step) + "/" + std::to_string(part);
    data.resize(1000, static_cast<char>('a' + part));
    const store::Entry entry{.name = "x",
                             .dtype = "Byte",
                             .shape = {900},
                             .offset = 64,
                             .bytes = 900,
                             .checksum = store::checksum_text(data.substr(64, 900))};
    made.indices.push_back(store::encode_index({entry}));
    made.manifest.parts.push_back(
        {.part = part, .bytes = data.size(), .index = store::checksum_text(made.indices.back())});
    made.data.push_back(std::move(data));
  }
  return made;
}

}  // namespace ronde::test
