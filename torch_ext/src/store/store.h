// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/runtime.h"
#include "torch_ext/src/store/manifest.h"

namespace ronde::store {

/// Whether a file has the part of the rank that wrote it, or of a rank on another host.
enum class Copy { Own, OfAnotherHost };

/// Sequences of checkpoints, both ends excluded.
struct Range {
  std::int64_t after = 0;
  std::int64_t before = 0;

  bool contains(std::int64_t sequence) const { return after < sequence && sequence < before; }
};

using BeginSpan = std::function<RuntimeSpan(std::string_view name)>;

/// A part, read and verified.
struct Part {
  std::string index = {};
  std::vector<Entry> entries = {};
  std::string data = {};
};

/// The folder with one rank's checkpoints, which ranks may share. In it,
///
///     000007-step-120-3fa91c02/   part-0.pt  part-0.json  part-1.pt ... manifest.json
///     partial-000008-step-130-3fa91c02/      a save in progress, or one that ended half way
///
/// A checkpoint counts once it has a manifest and its final name, which commit() gives it. Copies
/// for other hosts are copy-1.pt and copy-1.json. All members throw ronde::Error with the path and
/// what to do.
///
/// Thread-safety: one thread at a time. Ranks, and hosts with a shared file system, may call the
/// same members at once.
class Store {
 public:
  /// `begin_span`: begins a span of this name, for each file that is read or written; may be empty.
  explicit Store(std::filesystem::path folder, BeginSpan begin_span = {})
      : folder_(std::move(folder)), begin_span_(std::move(begin_span)) {}

  /// Creates the folder, and returns its identity on this host: device and inode.
  std::string prepare() const;

  /// Returns the checkpoints here, complete or not, in no order; none if there is no folder.
  std::vector<Sighting> scan() const;

  /// Writes a part of a checkpoint that is in progress, durably.
  void write_part(const Name& name, std::int64_t part, Copy copy, std::string_view index,
                  std::string_view data) const;

  /// Completes the checkpoint in progress, once all its parts are durable. Another rank may have
  /// committed it already.
  void commit(const Manifest& manifest) const;

  /// Removes a checkpoint in progress that cannot be completed, as far as that is possible.
  void discard(const Name& name) const noexcept;

  /// Throws Error if another run than that of `own` has made a checkpoint of sequence `first` or
  /// later: two jobs save here, and each would remove what is the other's.
  void check_alone(const Name& own, std::int64_t first) const;

  /// Removes remains of older saves, and all but the newest `keep` checkpoints (0: keeps all).
  /// Those that were passed over when this run resumed do not count as kept, and are removed with
  /// those before them. Checkpoints of other runs from sequence `first` on stay. Continues if one
  /// cannot be removed, and throws at the end.
  void prune(int keep, const Name& newest, const Range& passed_over = {},
             std::int64_t first = std::numeric_limits<std::int64_t>::max()) const;

  /// Reads and verifies a part, or else its copy. Throws FormatError, Error.
  Part read_part(const Sighting& sighting, const PartSummary& summary) const;

  const std::filesystem::path& folder() const noexcept { return folder_; }

 private:
  std::filesystem::path partial(const Name& name) const;

  std::filesystem::path folder_;
  BeginSpan begin_span_;
};

}  // namespace ronde::store
