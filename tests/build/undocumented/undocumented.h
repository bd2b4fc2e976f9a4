// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Breaks the rule on purpose that what is public has a comment.
namespace ronde {

/// Told together: `field` needs none.
struct UndocumentedCall {
  int field = 0;
};

/// Its field needs one.
struct Documented {
  int field_without_comment = 0;
};

int function_without_comment();

}  // namespace ronde
