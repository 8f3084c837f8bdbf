// Compiled where libmlx5's headers are installed: our declarations lie in memory as theirs do.
#include <infiniband/mlx5dv.h>

#include <cstddef>
#include <cstdio>

#include "fhbn/rdma/mlx5dv_abi.hpp"
#include "fhbn/rdma/wqe.hpp"

namespace rdma = lamina::fhbn::rdma;
namespace abi = rdma::abi;

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs))
#define SAME_PLACE(ours, our_field, theirs, their_field)                      \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) && \
                sizeof(decltype(ours::our_field)) == sizeof(decltype(theirs::their_field)))
#define SAME_VALUE(ours, theirs) static_assert(static_cast<unsigned>(ours) == static_cast<unsigned>(theirs))

SAME_SIZE(abi::Mlx5QueuePair, mlx5dv_qp);
SAME_PLACE(abi::Mlx5QueuePair, doorbell_records, mlx5dv_qp, dbrec);
SAME_PLACE(abi::Mlx5QueuePair, send, mlx5dv_qp, sq);
SAME_PLACE(abi::Mlx5QueuePair, send.memory, mlx5dv_qp, sq.buf);
SAME_PLACE(abi::Mlx5QueuePair, send.count, mlx5dv_qp, sq.wqe_cnt);
SAME_PLACE(abi::Mlx5QueuePair, send.stride, mlx5dv_qp, sq.stride);
SAME_PLACE(abi::Mlx5QueuePair, receive, mlx5dv_qp, rq);
SAME_PLACE(abi::Mlx5QueuePair, registers, mlx5dv_qp, bf);
SAME_PLACE(abi::Mlx5QueuePair, registers.address, mlx5dv_qp, bf.reg);
SAME_PLACE(abi::Mlx5QueuePair, registers.half_bytes, mlx5dv_qp, bf.size);
SAME_PLACE(abi::Mlx5QueuePair, wanted, mlx5dv_qp, comp_mask);
SAME_PLACE(abi::Mlx5QueuePair, uar_offset, mlx5dv_qp, uar_mmap_offset);

SAME_SIZE(abi::Mlx5CompletionQueue, mlx5dv_cq);
SAME_PLACE(abi::Mlx5CompletionQueue, entries, mlx5dv_cq, buf);
SAME_PLACE(abi::Mlx5CompletionQueue, doorbell_records, mlx5dv_cq, dbrec);
SAME_PLACE(abi::Mlx5CompletionQueue, count, mlx5dv_cq, cqe_cnt);
SAME_PLACE(abi::Mlx5CompletionQueue, entry_bytes, mlx5dv_cq, cqe_size);
SAME_PLACE(abi::Mlx5CompletionQueue, wanted, mlx5dv_cq, comp_mask);

// Newer versions have more objects, of which none is asked for.
static_assert(sizeof(abi::Mlx5Objects) >= sizeof(mlx5dv_obj));
SAME_PLACE(abi::Mlx5Objects, pair, mlx5dv_obj, qp.in);
SAME_PLACE(abi::Mlx5Objects, shown_pair, mlx5dv_obj, qp.out);
SAME_PLACE(abi::Mlx5Objects, completions, mlx5dv_obj, cq.in);
SAME_PLACE(abi::Mlx5Objects, shown_completions, mlx5dv_obj, cq.out);
SAME_VALUE(abi::kShowQueuePair, MLX5DV_OBJ_QP);
SAME_VALUE(abi::kShowCompletionQueue, MLX5DV_OBJ_CQ);

// What the NIC itself reads and writes.
SAME_SIZE(rdma::ControlSegment, mlx5_wqe_ctrl_seg);
SAME_PLACE(rdma::ControlSegment, index_opcode, mlx5_wqe_ctrl_seg, opmod_idx_opcode);
SAME_PLACE(rdma::ControlSegment, queue_segments, mlx5_wqe_ctrl_seg, qpn_ds);
SAME_PLACE(rdma::ControlSegment, flags, mlx5_wqe_ctrl_seg, fm_ce_se);
SAME_SIZE(rdma::RemoteAddressSegment, mlx5_wqe_raddr_seg);
SAME_PLACE(rdma::RemoteAddressSegment, address, mlx5_wqe_raddr_seg, raddr);
SAME_PLACE(rdma::RemoteAddressSegment, key, mlx5_wqe_raddr_seg, rkey);
SAME_SIZE(rdma::DataSegment, mlx5_wqe_data_seg);
SAME_PLACE(rdma::DataSegment, bytes, mlx5_wqe_data_seg, byte_count);
SAME_PLACE(rdma::DataSegment, key, mlx5_wqe_data_seg, lkey);
SAME_PLACE(rdma::DataSegment, address, mlx5_wqe_data_seg, addr);
SAME_VALUE(rdma::Opcode::kRdmaWrite, MLX5_OPCODE_RDMA_WRITE);
SAME_VALUE(rdma::Opcode::kNothing, MLX5_OPCODE_NOP);
SAME_VALUE(rdma::Completion::kAsked, MLX5_WQE_CTRL_CQ_UPDATE);
SAME_VALUE(rdma::kInline, MLX5_INLINE_SEG);
SAME_VALUE(rdma::kBlockBytes, MLX5_SEND_WQE_BB);

SAME_SIZE(rdma::CompletionEntry, mlx5_cqe64);
SAME_PLACE(rdma::CompletionEntry, opcode_queue, mlx5_cqe64, sop_drop_qpn);
SAME_PLACE(rdma::CompletionEntry, block, mlx5_cqe64, wqe_counter);
SAME_PLACE(rdma::CompletionEntry, kind_owner, mlx5_cqe64, op_own);
SAME_PLACE(rdma::CompletionEntry, vendor_syndrome, mlx5_err_cqe, vendor_err_synd);
SAME_PLACE(rdma::CompletionEntry, syndrome, mlx5_err_cqe, syndrome);
SAME_VALUE(rdma::CompletionKind::kRequest, MLX5_CQE_REQ);
SAME_VALUE(rdma::CompletionKind::kRequestError, MLX5_CQE_REQ_ERR);
SAME_VALUE(rdma::CompletionKind::kInvalid, MLX5_CQE_INVALID);
SAME_VALUE(rdma::Syndrome::kLocalLength, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
SAME_VALUE(rdma::Syndrome::kLocalOperation, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
SAME_VALUE(rdma::Syndrome::kLocalProtection, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
SAME_VALUE(rdma::Syndrome::kFlushed, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
SAME_VALUE(rdma::Syndrome::kLocalAccess, MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR);
SAME_VALUE(rdma::Syndrome::kRemoteInvalid, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
SAME_VALUE(rdma::Syndrome::kRemoteAccess, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
SAME_VALUE(rdma::Syndrome::kRemoteOperation, MLX5_CQE_SYNDROME_REMOTE_OP_ERR);
SAME_VALUE(rdma::Syndrome::kRetryExceeded, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
SAME_VALUE(rdma::Syndrome::kReceiverNotReady, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR);
SAME_VALUE(rdma::Syndrome::kRemoteAborted, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR);

SAME_VALUE(abi::kSendingRecord, MLX5_SND_DBR);

int main() { std::puts("the same"); }
