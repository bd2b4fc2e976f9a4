// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/prof/read/profile.h"

namespace ronde::prof {

/// One row of a table by size: "128 KB-16 MB".
struct SizeRow {
  std::string title;
  MessageClass messages;
};

/// The five classes of the EDSR study, empty ones too, or each class that was measured.
std::vector<SizeRow> size_rows(const Figures& figures, bool fine);

/// All classes together.
MessageClass all_messages(const Figures& figures);

/// The means of one rank and one step; 0 for what was not measured.
struct StepMeans {
  double time_us = 0;
  double exposed_us = 0;
  double backward_us = 0;
  double messages = 0;
  double tensors = 0;
  double bytes = 0;
  double backend_us = 0;    ///< packing, communication and unpacking
  double negotiate_us = 0;  ///< sum over messages, which may wait at the same time

  /// Share of the step that is exposed communication.
  double exposed_share() const { return time_us > 0 ? exposed_us / time_us : 0; }
};

/// Of the run.
StepMeans step_means(const Run& run);

}  // namespace ronde::prof
