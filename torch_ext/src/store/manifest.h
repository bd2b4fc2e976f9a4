// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// What a checkpoint's JSON files say. No LibTorch here, so that a fuzzer can run the decoders by
// themselves. Every decoder throws FormatError, whose text says what is wrong, for whatever its
// encoder does not write.
namespace ronde::store {

/// Of the format. A later one keeps the checksum around the manifest's content, so that damage is
/// not taken for a version.
inline constexpr std::int64_t kVersion = 2;

/// Identifies one checkpoint. Later ones have a greater sequence, also in a later run.
struct Name {
  std::int64_t sequence = 0;
  std::int64_t step = 0;
  std::string run = {};  ///< eight hexadecimal digits, those of the run that saved it

  bool operator==(const Name&) const = default;
};

/// "000007-step-120-3fa91c02": the folder of the checkpoint.
std::string folder_name(const Name& name);
/// False if this is no such folder.
bool parse_folder_name(std::string_view text, Name& name);

/// A tensor, or an object's bytes, within the file of a part.
struct Entry {
  std::string name = {};
  std::string type = {};   ///< of the object whose bytes these are; empty for a tensor
  std::string dtype = {};  ///< in LibTorch's words: "Float"
  std::vector<std::int64_t> shape = {};
  std::int64_t rank = -1;  ///< whose own it is; -1: the same on all ranks
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string checksum = {};
};

/// Of the part that one rank contributes.
struct PartSummary {
  std::int64_t part = 0;    ///< the rank
  std::uint64_t bytes = 0;  ///< of the file of tensors
  std::string index = {};   ///< checksum of the index
};

struct Manifest {
  std::int64_t version = kVersion;
  Name name = {};
  std::int64_t ranks = 0;
  std::vector<PartSummary> parts = {};
};

/// What one rank finds of a checkpoint in its folder.
struct Sighting {
  Name name = {};
  bool committed = false;                ///< in a folder with its final name
  std::string manifest = {};             ///< the text; empty if there is no readable one
  std::string problem = {};              ///< why there is none
  std::vector<std::int64_t> parts = {};  ///< that are here, whole or copied
};

std::string encode_manifest(const Manifest& manifest);
Manifest decode_manifest(std::string_view text);

/// `bytes`: of the file that the entries are in.
std::string encode_index(const std::vector<Entry>& entries);
std::vector<Entry> decode_index(std::string_view text, std::uint64_t bytes);

std::string encode_sightings(const std::vector<Sighting>& sightings);
std::vector<Sighting> decode_sightings(std::string_view text);

}  // namespace ronde::store
