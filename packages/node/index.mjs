import duralite from './index.js';

export const { enable, lastError, loadablePath } = duralite;
