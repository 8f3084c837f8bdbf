#pragma once

#include <string>

#include "cuda/library.h"

namespace lamina::cuda {

// What a call across the C boundary could not do. Never leaves this library.
struct Failure {
  lamina_cuda_status status;
  std::string sentence;
};

inline void require(bool holds, const char* sentence) {
  if (!holds) throw Failure{LAMINA_CUDA_BAD_ARGUMENT, sentence};
}

}  // namespace lamina::cuda
