#pragma once
typedef struct cusparseContext* cusparseHandle_t;
typedef enum { CUSPARSE_STATUS_SUCCESS = 0 } cusparseStatus_t;
inline const char* cusparseGetErrorString(cusparseStatus_t) { return ""; }
