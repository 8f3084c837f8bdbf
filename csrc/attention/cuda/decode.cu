#include "attention/cuda/append.cuh"
#include "attention/cuda/combine.cuh"
#include "attention/cuda/decode.h"
#include "attention/cuda/finish.cuh"
#include "attention/cuda/plan.cuh"
#include "attention/cuda/problem.hpp"
#include "cuda/runtime.hpp"

namespace lamina::attention::cuda {

namespace {

void enqueue_plan(const Problem& problem, const lamina_cuda_lists& lists, std::int32_t window, Which which,
                  const Workspace& work, cudaStream_t stream) {
  const std::int32_t kv_heads = problem.attention().kv_heads;
  PlanArgs args{};
  args.lists = lists.offsets;
  args.requests = lists.batch;
  args.kv_heads = kv_heads;
  args.window = window;
  args.which = which;
  args.tile = problem.attend().tokens;
  args.workers = problem.workers();
  args.counters = static_cast<std::int64_t>(problem.passes()) * lists.batch * kv_heads;
  args.plan = work.plan;
  args.first = work.first;
  args.begin = work.begin;
  args.end = work.end;
  args.offset = work.offset;
  args.arrivals = work.arrivals;
  launch(reinterpret_cast<const void*>(&share_out), grid_of(1), kPlanThreads, kPlanSharedBytes, stream, args,
         "planning");
}

void enqueue_begin(const Problem& problem, const Arena& arena, const lamina_cuda_lists& lists, const void* q,
                   const Workspace& work, const lamina_cuda_partial& partial, cudaStream_t stream) {
  const lamina_cuda_attention& attention = problem.attention();
  const std::int32_t workers = problem.workers();
  AttendArgs args{};
  args.q = q;
  args.rows = {arena.k, arena.v, arena.slot_bytes, problem.row_bytes()};
  args.head_bytes = arena.head_bytes;
  args.slots = lists.slots;
  args.heads = attention.heads;
  args.group = problem.group();
  args.head_dim = attention.head_dim;
  args.scoring = problem.scoring();
  args.plan = work.plan;
  args.first = work.first;
  args.requests = {work.offset, work.begin, work.end, lists.batch};
  args.arrivals = work.arrivals;
  args.part_lse = work.part_lse;
  args.part_out = work.part_out;
  args.parts = part_count(static_cast<std::int64_t>(lists.batch) * attention.kv_heads, workers);
  args.out = partial.out;
  args.lse = partial.lse;
  launch(problem.attend().entry, grid_of(problem.passes(), workers), kThreads, problem.attend().shared_bytes,
         stream, args, "attending");
}

void enqueue_finish(const Problem& problem, const Arena& arena, const lamina_cuda_lists& lists, const void* q,
                    const void* k, const void* v, const lamina_cuda_partial& partial, void* out,
                    cudaStream_t stream) {
  const lamina_cuda_attention& attention = problem.attention();
  FinishArgs args{};
  args.q = q;
  args.new_k = k;
  args.new_v = v;
  args.lists = lists.offsets;
  args.slots = lists.slots;
  args.out = partial.out;
  args.lse = partial.lse;
  args.result = out;
  args.k = arena.k;
  args.v = arena.v;
  args.slot_bytes = arena.slot_bytes;
  args.head_bytes = arena.head_bytes;
  args.heads = attention.heads;
  args.group = problem.group();
  args.head_dim = attention.head_dim;
  args.scoring = problem.scoring();
  launch(problem.kernels().finish, grid_of(lists.batch, attention.kv_heads), kFinishThreads, 0, stream, args,
         "finishing");
}

Which which_of(std::int32_t which) {
  require(which == LAMINA_CUDA_PREVIOUS || which == LAMINA_CUDA_ALL,
          "`which` is neither the previous tokens nor all");
  return which == LAMINA_CUDA_ALL ? Which::kAll : Which::kPrevious;
}

}  // namespace

}  // namespace lamina::attention::cuda

namespace cuda = lamina::attention::cuda;

lamina_cuda_status lamina_cuda_workspace_bytes(const lamina_cuda_attention* attention, int32_t batch,
                                               size_t* bytes) {
  return cuda::guarded([&] {
    const cuda::Problem problem(attention);
    cuda::require(batch >= 0 && bytes != nullptr, "there is no batch to make room for");
    cuda::require_device();
    *bytes = cuda::Workspace::at(nullptr, problem.size(batch)).bytes;
  });
}

lamina_cuda_status lamina_cuda_plan(const lamina_cuda_attention* attention, const lamina_cuda_lists* lists,
                                    int32_t window, int32_t which, const lamina_cuda_workspace* workspace,
                                    lamina_cuda_stream stream) {
  return cuda::guarded([&] {
    const cuda::Problem problem(attention);
    cuda::require_lists(lists);
    cuda::require(window >= 0, "the window is negative");
    const cuda::Which tokens = cuda::which_of(which);
    cuda::require_device();
    if (lists->batch == 0) return;
    cuda::enqueue_plan(problem, *lists, window, tokens, problem.in(workspace, lists->batch), stream);
  });
}

lamina_cuda_status lamina_cuda_begin(const lamina_cuda_attention* attention, const lamina_cuda_arena* arena,
                                     const lamina_cuda_lists* lists, const void* q,
                                     const lamina_cuda_workspace* workspace,
                                     const lamina_cuda_partial* partial, lamina_cuda_stream stream) {
  return cuda::guarded([&] {
    const cuda::Problem problem(attention);
    const cuda::Arena where(arena, problem);
    cuda::require_lists(lists);
    cuda::require_device();
    if (lists->batch == 0) return;
    cuda::require_tensor(q, "q is missing or not aligned to 16 bytes");
    cuda::require_partial(partial);
    cuda::enqueue_begin(problem, where, *lists, q, problem.in(workspace, lists->batch), *partial, stream);
  });
}

lamina_cuda_status lamina_cuda_finish(const lamina_cuda_attention* attention, const lamina_cuda_arena* arena,
                                      const lamina_cuda_lists* lists, const void* q, const void* k,
                                      const void* v, const lamina_cuda_partial* partial, void* out,
                                      lamina_cuda_stream stream) {
  return cuda::guarded([&] {
    const cuda::Problem problem(attention);
    const cuda::Arena where(arena, problem);
    cuda::require_lists(lists);
    cuda::require_device();
    if (lists->batch == 0) return;
    cuda::require_tensor(q, "q is missing or not aligned to 16 bytes");
    cuda::require_tensor(k, "k is missing or not aligned to 16 bytes");
    cuda::require_tensor(v, "v is missing or not aligned to 16 bytes");
    cuda::require_tensor(out, "out is missing or not aligned to 16 bytes");
    cuda::require_partial(partial);
    cuda::enqueue_finish(problem, where, *lists, q, k, v, *partial, out, stream);
  });
}

lamina_cuda_status lamina_cuda_partial_of(const lamina_cuda_attention* attention,
                                          const lamina_cuda_arena* arena, const lamina_cuda_lists* lists,
                                          int32_t window, const void* q,
                                          const lamina_cuda_workspace* workspace,
                                          const lamina_cuda_partial* partial, lamina_cuda_stream stream) {
  const lamina_cuda_status planned =
      lamina_cuda_plan(attention, lists, window, LAMINA_CUDA_ALL, workspace, stream);
  if (planned != LAMINA_CUDA_OK) return planned;
  return lamina_cuda_begin(attention, arena, lists, q, workspace, partial, stream);
}

lamina_cuda_status lamina_cuda_combine(const lamina_cuda_attention* attention, int32_t batch,
                                       const lamina_cuda_partial* first, const lamina_cuda_partial* second,
                                       const lamina_cuda_partial* result, lamina_cuda_stream stream) {
  return cuda::guarded([&] {
    const cuda::Problem problem(attention);
    cuda::require(batch >= 0, "the batch is negative");
    cuda::require_device();
    if (batch == 0) return;
    for (const lamina_cuda_partial* partial : {first, second, result}) cuda::require_partial(partial);
    const std::int64_t rows = static_cast<std::int64_t>(batch) * problem.attention().heads;
    constexpr int kRows = cuda::kCombineThreads / 32;
    const cuda::CombineArgs args{first->out,  first->lse,  second->out, second->lse,
                                 result->out, result->lse, rows,        problem.attention().head_dim};
    cuda::launch(reinterpret_cast<const void*>(&cuda::combine), cuda::grid_of((rows + kRows - 1) / kRows),
                 cuda::kCombineThreads, 0, stream, args, "combining");
  });
}

lamina_cuda_status lamina_cuda_append(const lamina_cuda_attention* attention, const lamina_cuda_arena* arena,
                                      const void* k, const void* v, const int32_t* slots, int64_t tokens,
                                      lamina_cuda_stream stream) {
  return cuda::guarded([&] {
    const cuda::Problem problem(attention);
    const cuda::Arena where(arena, problem);
    cuda::require(tokens >= 0, "the number of tokens is negative");
    cuda::require_device();
    if (tokens == 0) return;
    cuda::require_tensor(k, "k is missing or not aligned to 16 bytes");
    cuda::require_tensor(v, "v is missing or not aligned to 16 bytes");
    cuda::require(slots != nullptr, "the slots are missing");
    const std::int32_t kv_heads = problem.attention().kv_heads;
    const std::int64_t chunks = tokens * kv_heads * (problem.row_bytes() / 16);
    const std::int64_t blocks = (chunks + cuda::kAppendThreads - 1) / cuda::kAppendThreads;
    cuda::require(blocks <= INT32_MAX, "these are too many tokens for one call");
    const cuda::AppendArgs args{k,
                                v,
                                slots,
                                where.k,
                                where.v,
                                where.slot_bytes,
                                where.head_bytes,
                                tokens,
                                kv_heads,
                                problem.row_bytes()};
    cuda::launch(reinterpret_cast<const void*>(&cuda::append), cuda::grid_of(blocks), cuda::kAppendThreads, 0,
                 stream, args, "appending");
  });
}

lamina_cuda_status lamina_cuda_allocate_managed(size_t bytes, void** memory) {
  return cuda::guarded([&] {
    cuda::require(bytes > 0 && memory != nullptr,
                  "managed memory needs a size and somewhere to put its address");
    cuda::require_device();
    cuda::check(cudaMallocManaged(memory, bytes, cudaMemAttachGlobal), "allocating managed memory");
  });
}

lamina_cuda_status lamina_cuda_free_managed(void* memory) {
  return cuda::guarded([&] { cuda::check(cudaFree(memory), "freeing managed memory"); });
}
