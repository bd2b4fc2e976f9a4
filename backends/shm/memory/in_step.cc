// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/memory/in_step.h"

#include "core/src/base/fields.h"

namespace ronde::shm {

std::vector<std::string> in_step(const Meeting& meeting, const std::string& goal,
                                 const std::function<std::string()>& step) {
  std::string error;
  std::string own;
  try {
    own = step();
  } catch (const std::exception& failure) {
    error = *failure.what() != '\0' ? failure.what() : "unknown error";
  } catch (...) {
    error = "unknown error";
  }
  std::vector<std::string> results;
  int rank = 0;
  for (const std::string& blob : meeting.exchange(pack_fields({error, own}))) {
    const std::vector<std::string> fields = unpack_fields_from(rank, blob, 2);
    if (!fields[0].empty()) {
      throw StepError(rank, "rank " + std::to_string(rank) + " " + goal + ": " + fields[0]);
    }
    results.push_back(fields[1]);
    ++rank;
  }
  return results;
}

}  // namespace ronde::shm
