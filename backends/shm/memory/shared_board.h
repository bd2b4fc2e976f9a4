// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ronde/plugin/board.h"

namespace ronde {

/// The board of ranks that are processes of one host: a page of words that all map, and an eventfd
/// of each. Null where the transport offers none (Transport::wake_fd).
MakeBoard shm_board_factory();

}  // namespace ronde
