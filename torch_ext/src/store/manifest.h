// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/error.h"

// The contents of a checkpoint's JSON files, without LibTorch, so that a fuzzer can run the
// decoders. Every decoder throws FormatError with the reason for input that its encoder does not
// write.
namespace ronde::store {

/// Thrown for a file that is damaged, or not of a checkpoint.
class FormatError : public Error {
 public:
  using Error::Error;
};

/// Thrown for a file of a later version of Ronde: an older checkpoint must not silently replace it.
class NewerVersion : public FormatError {
 public:
  using FormatError::FormatError;
};

/// SipHash-2-4 with a key of zeros (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input
/// PRF", 2012), by libsodium.
std::uint64_t checksum(std::string_view bytes);

/// Returns 16 hexadecimal digits.
std::string checksum_text(std::uint64_t value);
inline std::string checksum_text(std::string_view bytes) {
  return checksum_text(checksum(bytes));
}

/// Version of the format. Later ones keep the checksum around the manifest's content, so that
/// damage is not mistaken for a version.
inline constexpr std::int64_t kVersion = 2;

/// Identifies one checkpoint. Later ones have a greater sequence, also in a later run.
struct Name {
  std::int64_t sequence = 0;
  std::int64_t step = 0;
  std::string run = {};  ///< eight hexadecimal digits of the run that saved it

  bool operator==(const Name&) const = default;
};

/// "000007-step-120-3fa91c02": the folder of the checkpoint.
std::string folder_name(const Name& name);
/// Returns false for another text.
bool parse_folder_name(std::string_view text, Name& name);

/// A tensor, or an object's bytes, within the file of a part.
struct Entry {
  std::string name = {};
  std::string type = {};   ///< of the object, for its bytes; empty for a tensor
  std::string dtype = {};  ///< LibTorch's name: "Float"
  std::vector<std::int64_t> shape = {};
  std::int64_t rank = -1;  ///< the owner; -1: equal on all ranks
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string checksum = {};
};

/// The part of one rank.
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

/// The state of a checkpoint in one rank's folder.
struct Sighting {
  Name name = {};
  bool committed = false;                ///< in a folder with its final name
  std::string manifest = {};             ///< the text; empty if it cannot be read
  std::string problem = {};              ///< why it cannot
  std::vector<std::int64_t> parts = {};  ///< in the folder, or copies of them
};

std::string encode_manifest(const Manifest& manifest);
Manifest decode_manifest(std::string_view text);

/// `bytes`: the size of the file with the entries.
std::string encode_index(const std::vector<Entry>& entries);
std::vector<Entry> decode_index(std::string_view text, std::uint64_t bytes);

std::string encode_sightings(const std::vector<Sighting>& sightings);
std::vector<Sighting> decode_sightings(std::string_view text);

/// A checkpoint that some rank has seen.
struct Candidate {
  Name name = {};
  Manifest manifest = {};
  /// For each part of the manifest, the ranks that may read it, one on each host.
  std::vector<std::vector<int>> readers = {};
  /// Why it cannot be used; empty if it can, unless a file turns out to be damaged.
  std::string problem = {};
};

/// Returns the candidates, newest first, without saves that no host has committed. Pure: every rank
/// computes the same from `all` ranks' sightings. `host_of`: the host of each rank.
std::vector<Candidate> find_candidates(const std::vector<std::vector<Sighting>>& all,
                                       const std::vector<int>& host_of);

}  // namespace ronde::store
