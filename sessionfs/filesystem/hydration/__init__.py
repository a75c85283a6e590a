"""Parts of `loading`: what comes into the working copy from the bucket, and what leaves it because another host changed it."""
