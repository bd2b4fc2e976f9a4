// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ronde::tool {

/// The rank that the launcher gave to this process, before any rank has met another: so that one of
/// them speaks of what all find wrong alike. 0 without a launcher.
int launched_rank();

}  // namespace ronde::tool
