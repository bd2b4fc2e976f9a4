// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace ronde {

/// Lets ranks find each other through a store of keys and values that all of them reach: a file
/// system, a server of the launcher, c10d's Store.
///
/// `put` and `get` are called on a thread of Ronde's, one at a time, and only while the Runtime is
/// being constructed. What they throw fails the start of this rank: a GroupError with its text. A
/// call that does not return is given up 3 s after RONDE_INIT_TIMEOUT_S: a GroupError names it and
/// its key, and Ronde's thread stays in it.
struct KeyValueStart {
  /// This rank, and how many there are.
  /// @{
  int rank = 0;
  int size = 1;
  /// @}
  /// The number of this rank among those of its host, in the order of ranks; compared with what
  /// the ranks find out. -1: not known.
  int local_rank = -1;
  /// Prefix of every key. Must be unique per start, as the store still holds earlier addresses: a
  /// store of several jobs, or a job that starts again, gives each its own.
  std::string prefix = "ronde";
  /// Stores a value. Keys and values are printable ASCII, below 1000 characters unless the host
  /// has very many addresses; each key is put once.
  std::function<void(const std::string& key, const std::string& value)> put;
  /// The value of a key that another rank puts. It may wait for the value, or return nothing while
  /// it is missing: it is then called again, after a pause that grows from 1 ms to 50 ms.
  std::function<std::optional<std::string>(const std::string& key)> get;
};

}  // namespace ronde
