// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Breaks the rule on purpose that what is public has a comment.
namespace undocumented {

/// Its fields need none.
struct Documented {
  int field = 0;
};

int function_without_comment();

}  // namespace undocumented
